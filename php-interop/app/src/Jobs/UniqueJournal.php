<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeUnique;

/** A {@see Journal} of which only one per name is queued at a time. */
class UniqueJournal extends Journal implements ShouldBeUnique
{
    public int $uniqueFor = 600;

    public function uniqueId(): string
    {
        return $this->id;
    }
}
