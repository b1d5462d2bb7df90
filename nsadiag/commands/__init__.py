"""What each command does, once its line has been parsed; these put the rooms together."""
