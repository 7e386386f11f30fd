<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeUnique;

/** A {@see Journal} of which only one is queued at a time, whatever its name. */
class SingleJournal extends Journal implements ShouldBeUnique
{
    public int $uniqueFor = 600;
}
