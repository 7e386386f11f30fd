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

    public function run(Job $job, mixed $data): void
    {
        Seen::record(['class' => self::class, 'method' => 'run', 'document' => $data]);
        $job->delete();
    }
}
