<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Limits set on the object. */
class RetryingSet implements ShouldQueue
{
    use Queued;

    public $tries;

    public $backoff;

    public function __construct()
    {
        $this->tries = 4;
        $this->backoff = 7;
    }
}
