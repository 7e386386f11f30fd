<?php

namespace App\Jobs;

use App\Models\User;
use Illuminate\Contracts\Queue\ShouldQueue;

/** An Eloquent model. */
class WithModel implements ShouldQueue
{
    use Queued;

    public function __construct(public User $user, public ?User $nobody = null) {}
}
