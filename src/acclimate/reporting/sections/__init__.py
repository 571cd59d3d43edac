"""The report's sections: a module for each, whose functions turn the board of runs into HTML."""
