<?php

namespace App\Jobs;

use App\Seen;
use Illuminate\Bus\Queueable;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\SerializesModels;

/** The traits of a class made by `make:job`, and a `handle` that reports what arrived. */
trait Queued
{
    use Dispatchable, InteractsWithQueue, Queueable, SerializesModels;

    public function handle(): void
    {
        Seen::record($this);
    }
}
