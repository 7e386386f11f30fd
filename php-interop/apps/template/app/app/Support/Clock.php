<?php

namespace App\Support;

/** A class that is never queued. */
class Clock
{
}
