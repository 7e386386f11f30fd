<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeUnique;

/** The same, of which there is one at a time. */
class HostileOnce extends Hostile implements ShouldBeUnique
{
    public $uniqueFor = 3600;

    public function uniqueId(): string
    {
        return $this->id;
    }
}
