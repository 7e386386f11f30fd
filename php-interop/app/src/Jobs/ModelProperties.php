<?php

namespace App\Jobs;

use App\Models\Document;
use App\Models\User;
use Illuminate\Contracts\Queue\ShouldQueue;

/** One model in properties of every visibility, and one whose key is text. */
class ModelProperties implements ShouldQueue
{
    use Queued;

    public $first;

    protected $second;

    private $third;

    public $document;

    public function __construct(User $user, Document $document)
    {
        $this->first = $user;
        $this->second = $user;
        $this->third = $user;
        $this->document = $document;
    }
}
