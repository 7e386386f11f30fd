<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Has its own time limit. */
class TimeoutJob implements ShouldQueue
{
    use Queued;

    public $timeout = 7;

    public $failOnTimeout = true;
}
