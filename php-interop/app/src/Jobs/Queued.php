<?php

namespace App\Jobs;

use App\Seen;
use Illuminate\Bus\Queueable;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\SerializesModels;

/** What a job class made by `make:job` uses, and a `handle` that tells what arrived. */
trait Queued
{
    use Dispatchable, InteractsWithQueue, Queueable, SerializesModels;

    public function handle(): void
    {
        Seen::record($this);
    }
}
