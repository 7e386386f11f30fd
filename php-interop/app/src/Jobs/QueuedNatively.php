<?php

namespace App\Jobs;

use App\Seen;
use Illuminate\Bus\Queueable;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;

/** As Queued, but PHP's own serialization writes the object. */
trait QueuedNatively
{
    use Dispatchable, InteractsWithQueue, Queueable;

    public function handle(): void
    {
        Seen::record($this);
    }
}
