"""The commands of the terminal: what they take, what they show."""
