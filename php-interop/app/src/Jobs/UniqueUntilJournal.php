<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeUniqueUntilProcessing;

/** A {@see Journal} of which only one per name waits at a time. */
class UniqueUntilJournal extends Journal implements ShouldBeUniqueUntilProcessing
{
    public int $uniqueFor = 600;

    public function uniqueId(): string
    {
        return $this->id;
    }
}
