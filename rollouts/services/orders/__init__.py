"""What people command, and what they are told while they do not."""
