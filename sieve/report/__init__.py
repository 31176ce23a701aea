"""What people read: the HTML report and terminal tables. Rounding happens here and only here."""
