<?php

namespace App\Jobs;

use App\Models\User;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\Attributes\WithoutRelations;

/** A model with loaded relations. */
class ModelWithRelations implements ShouldQueue
{
    use Queued;

    public User $user;

    #[WithoutRelations]
    public User $bare;

    public function __construct(User $user)
    {
        $this->user = $user;
        $this->bare = $user;
    }
}
