<?php

namespace App\Jobs;

use App\Models\User;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Is deleted, not failed, when its model is gone. */
class ModelDeleteWhenMissing implements ShouldQueue
{
    use Queued;

    public $deleteWhenMissingModels = true;

    public function __construct(public User $user) {}
}
