"""`attendrop demo`: three trainings on film reviews, without a hub."""
