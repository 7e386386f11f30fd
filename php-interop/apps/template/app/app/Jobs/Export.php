<?php

namespace App\Jobs;

use App\Contracts\Exportable;

/** Queued by way of an interface of its own, and in the global order of things plain. */
class Export implements Exportable
{
    protected $tries = 3;

    public $middleware = [\Illuminate\Session\Middleware\StartSession::class];

    public function handle()
    {
    }
}

final class ExportChunk implements Exportable
{
    public $rows = [];
}
