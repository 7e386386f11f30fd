<?php

namespace App\Models;

use Illuminate\Database\Eloquent\Model;

/** Loaded for a job by a query of its own. */
class Restored extends Model
{
    public function newQueryForRestoration($ids)
    {
        return parent::newQueryForRestoration($ids)->where('deleted', 0);
    }
}
