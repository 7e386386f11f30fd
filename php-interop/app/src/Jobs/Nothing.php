<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** No properties at all. */
class Nothing implements ShouldQueue
{
    use Queued;
}
