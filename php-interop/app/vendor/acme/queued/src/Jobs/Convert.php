<?php

namespace Acme\Queued\Jobs;

use Acme\Queued\Contracts\{Heavy as Slow};
use Illuminate\Bus\Batchable;
use Illuminate\Bus\Queueable;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\SerializesModels;

class Convert implements Slow
{
    use Batchable, InteractsWithQueue, Queueable, SerializesModels;

    public $tries = 4;

    public $timeout = 70;

    public $format = 'png';

    public function __construct(public string $path)
    {
    }

    public function handle(): void
    {
    }
}
