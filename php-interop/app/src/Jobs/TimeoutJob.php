<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** A time limit of its own. */
class TimeoutJob implements ShouldQueue
{
    use Queued;

    public $timeout = 7;

    public $failOnTimeout = true;
}
