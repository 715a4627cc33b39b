"""What ships with the product and a site may add to: its files, and how they are loaded."""
