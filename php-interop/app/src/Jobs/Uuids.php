<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Support\Str;
use Ramsey\Uuid\Uuid;

/** UUID objects. */
class Uuids implements ShouldQueue
{
    use Queued;

    public $uuid;

    public array $list;

    public function __construct()
    {
        $this->uuid = Uuid::fromString('9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d');
        $this->list = [$this->uuid, Str::uuid()];
    }
}
