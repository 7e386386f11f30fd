<?php

namespace App\Jobs;

use App\Models\User;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Support\Collection;

/** Models in an array and in a base collection are not replaced by identifiers. */
class ModelInside implements ShouldQueue
{
    use Queued;

    public array $list;

    public Collection $collection;

    public function __construct(User $user)
    {
        $this->list = ['user' => $user];
        $this->collection = new Collection([$user]);
    }
}
