<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeEncrypted;
use Illuminate\Contracts\Queue\ShouldQueue;

/** The command is encrypted. */
class Encrypted implements ShouldBeEncrypted, ShouldQueue
{
    use Queued;

    public function __construct(public string $secret, public float $amount, private array $list = [1, 'x' => null]) {}
}
