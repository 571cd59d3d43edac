"""What people look at: the report of runs (report.py, sections/) and the preview of data (preview.py), as HTML."""
