"""What is on disk: blobs, generations, and how they change without ever being half done."""
