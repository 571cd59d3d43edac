"""What is run, as one record: the experiment, its spellings in files and settings, and the catalogue of names."""
