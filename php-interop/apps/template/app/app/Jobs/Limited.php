<?php

namespace App\Jobs;

use Illuminate\Bus\Batchable;
use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldBeEncrypted;
use Illuminate\Contracts\Queue\ShouldBeUnique;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\SerializesModels;

/** Every limit that a property can set. */
class Limited implements ShouldQueue, ShouldBeUnique, ShouldBeEncrypted
{
    use Batchable;
    use InteractsWithQueue;
    use Queueable;
    use SerializesModels;

    public $tries = 5;

    public $timeout = 120;

    public $backoff = [1, 5, 10];

    public $maxExceptions = 3;

    public $failOnTimeout = true;

    public $deleteWhenMissingModels = true;

    public $uniqueFor = 3600;

    public $uniqueId = 'only';

    public function handle()
    {
    }
}
