<?php

namespace App\Jobs;

use App\Seen;
use Illuminate\Contracts\Queue\Job;

/** Handler of string jobs. */
class Legacy
{
    public function fire(Job $job, mixed $data): void
    {
        Seen::record(['class' => self::class, 'method' => 'fire', 'document' => $data]);
        $job->delete();
    }

    /** Neither deletes nor releases it: it stays reserved. */
    public function keep(Job $job, mixed $data): void
    {
        Seen::record(['class' => self::class, 'method' => 'keep', 'document' => $data]);
    }

    public function run(Job $job, mixed $data): void
    {
        Seen::record(['class' => self::class, 'method' => 'run', 'document' => $data]);
        $job->delete();
    }
}
