"""What only a browser can show: that pages load nothing, run nothing, fit on a phone and can be walked by keyboard."""
