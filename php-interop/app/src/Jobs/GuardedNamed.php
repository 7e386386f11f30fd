<?php

namespace App\Jobs;

/** Called by another name than its class. */
class GuardedNamed extends Guarded
{
    public function displayName(): string
    {
        return 'Nice Name';
    }
}
