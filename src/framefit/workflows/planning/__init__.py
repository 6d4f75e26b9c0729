"""What planning shares: the device opened, launches and cuts priced, models placed, on one unit and on several."""
