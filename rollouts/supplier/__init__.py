"""What a supplier may see of a case: named fields only, one time line, three forms."""

from rollouts.supplier.forms import render
from rollouts.supplier.gathering import Package, Text, gather

__all__ = ["Package", "Text", "gather", "render"]
