<?php

namespace App\Jobs;

/** Its display name differs from its class. */
class GuardedNamed extends Guarded
{
    public function displayName(): string
    {
        return 'Nice Name';
    }
}
