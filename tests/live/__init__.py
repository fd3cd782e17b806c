"""What only a real account can prove, tried by a person who has one."""
