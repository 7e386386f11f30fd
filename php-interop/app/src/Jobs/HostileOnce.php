<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeUnique;

/** The same, unique: only one at a time. */
class HostileOnce extends Hostile implements ShouldBeUnique
{
    public $uniqueFor = 3600;

    public function uniqueId(): string
    {
        return $this->id;
    }
}
