// Waves that somebody opened or closed stay so when a part of the page is replaced.
"use strict";

(() => {
  const chosen = new Map();

  document.addEventListener("click", (event) => {
    const wave = event.target.closest?.("summary")?.parentElement;
    if (wave?.id) {
      chosen.set(wave.id, !wave.open);
    }
  });

  document.addEventListener("htmx:afterSwap", () => {
    for (const [id, isOpen] of chosen) {
      const wave = document.getElementById(id);
      if (wave) {
        wave.open = isOpen;
      }
    }
  });
})();
