<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeEncrypted;

/** A journal job whose command is encrypted. */
class EncryptedJournal extends Journal implements ShouldBeEncrypted {}
