"""What people write to ask for Python packages: text in, values or mistakes out. Opens no file."""
