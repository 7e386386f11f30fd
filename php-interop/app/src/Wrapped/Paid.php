<?php

namespace App\Wrapped;

use App\Models\User;
use Illuminate\Queue\SerializesModels;

class Paid
{
    use SerializesModels;

    public ?string $note = null;

    public function __construct(public User $user, protected float $amount) {}
}
