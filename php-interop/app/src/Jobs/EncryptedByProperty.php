<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Encrypted because a property says so (since Laravel 8.25). */
class EncryptedByProperty implements ShouldQueue
{
    use Queued;

    public $shouldBeEncrypted = true;

    public function __construct(public string $secret = 's3cret') {}
}
