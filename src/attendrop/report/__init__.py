"""What a person looks at: plots of what a method does."""
