<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Dispatched with middleware on the object. */
class Middleware implements ShouldQueue
{
    use Queued;

    public $order = 22;
}
