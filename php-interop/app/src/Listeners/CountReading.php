<?php

namespace App\Listeners;

use App\Events\ArticleRead;
use App\Routing;
use App\Seen;
use Illuminate\Contracts\Queue\ShouldQueue;

/** A listener whose method is not `handle`, with limits. */
class CountReading implements ShouldQueue
{
    public $tries = 4;

    public $backoff = [1, 2];

    public $timeout = 9;

    public function count(ArticleRead $event): void
    {
        Seen::record($event);
    }

    public function viaQueue(): ?string
    {
        return Routing::$queue;
    }
}
