"""Usage: python3 -m unittest      (in this folder)"""

import unittest

import places


class Places(unittest.TestCase):
    def test_they_exist(self):
        self.assertEqual([str(place) for place in places.PLACES if not place.exists()], [])
