"""Pure building blocks that two or more methods or adapters use."""
