<?php

namespace App\Support;

/** Nothing that is ever queued. */
class Clock
{
}
