<?php

namespace App\Jobs;

use Illuminate\Bus\Batchable;

/** A {@see Journal} that may be in a batch. */
class BatchJournal extends Journal
{
    use Batchable;
}
