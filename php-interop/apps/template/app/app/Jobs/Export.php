<?php

namespace App\Jobs;

use App\Contracts\Exportable;

/** A plain job, queued through an interface that the app defines. */
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
